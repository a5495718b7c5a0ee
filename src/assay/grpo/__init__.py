"""The mathematics of group-relative policy optimisation, and the update built from it."""
