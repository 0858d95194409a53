"""What is kept: number formats, and the kinds of cache that a layer can hold."""
