"""The options of nsys and ncu that gpusight uses, and how each version spells them."""
