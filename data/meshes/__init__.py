"""Textured triangle meshes: read from files, rendered with known cameras, written as scenes."""
