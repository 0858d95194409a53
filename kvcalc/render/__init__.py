"""How a report looks: on a terminal, and in the formats that other programs read."""
