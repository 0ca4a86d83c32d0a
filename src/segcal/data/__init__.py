"""From raw data in its official layout to prepared cases that are read at memory speed."""
