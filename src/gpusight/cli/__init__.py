"""The command line: parse, call, render. No analysis lives here."""
