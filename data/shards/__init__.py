"""Captures packed into WebDataset shards: written once, read as a stream from a disk or over a network."""
