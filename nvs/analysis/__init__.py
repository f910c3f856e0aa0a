"""What a memory layer does inside a model: each question is a module with a function, and its answer plain values."""
