"""The trace model: tables, their schema, and the few ideas every analysis shares."""
