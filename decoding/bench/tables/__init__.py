"""What benchmarks say: figures, tables, expectations, the report.

Not the engine; nothing of it imports this.
"""
