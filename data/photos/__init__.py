"""Photos or a video without cameras -> a capture with cameras, by structure from motion (pycolmap)."""
