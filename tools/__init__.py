"""Tools of developers: what writes the generated pages of docs/. Not part of the package."""
