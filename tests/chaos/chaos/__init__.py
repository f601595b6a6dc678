"""A chaos run: `plan` decides from a seed what happens, `perform` does it, `check` judges what came of it."""
