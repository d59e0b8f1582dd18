"""From a file to a Trace. Vendor schemas and versions stop here."""
