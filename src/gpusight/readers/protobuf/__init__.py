"""Protobuf's wire format: single values, and the values of many messages at once."""
