"""The timeline: what a screen of any width shows of a capture of any size, and what is there."""
