"""What an architecture is: the spec language, its reader, the catalogue, parameter counts."""
