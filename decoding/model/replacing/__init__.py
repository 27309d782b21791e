"""What stands for a model's modules and functions: rules and the walk by them, their table, and when each is asked."""
