"""What a step costs on this machine, and so what a drafted node must be worth.

Pure arithmetic over seconds that others measure. Knows neither models nor requests.
"""
