"""CUPTI's activity records, taken as the raw buffers that libcupti fills, and written as SQLite.

The `cupti-python` package makes a Python object of every record while the program runs, and reads
each field through NumPy: 50 us and more a record, with the interpreter's lock held. So libcupti is
called through ctypes instead: a full buffer costs one copy, and records are taken apart at the end.
"""
