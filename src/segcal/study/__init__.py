"""A plan of runs: `plan` reads it, `runner` carries it out, here or on a Ray cluster."""
