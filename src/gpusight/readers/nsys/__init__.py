"""Nsight Systems: exports (SQLite, Parquet, Arrow) and native reports, without NVIDIA software."""
