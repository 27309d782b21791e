"""The output of benchmarks: figures, tables, expectations, the report.

Not the engine; nothing of it imports this.
"""
