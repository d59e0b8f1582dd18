"""Profiles of JAX and TensorFlow."""
