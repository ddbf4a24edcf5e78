"""Files: how they are read and written with care, and the folder of a run."""
