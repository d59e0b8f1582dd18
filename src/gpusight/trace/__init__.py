"""A capture as tables: the schema, the Trace, intervals and nesting, the column cache."""
