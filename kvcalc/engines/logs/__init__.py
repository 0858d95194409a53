"""Start-up logs of inference engines: what their lines say, as figures with the rounding that they were printed in."""
