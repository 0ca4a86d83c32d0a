"""Studies: `plan` reads a plan of runs, `runner` carries it out, here or on a Ray cluster."""
