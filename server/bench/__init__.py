"""`gander bench serve`: benchmarks of whole servers through HTTP.

It measures any server with OpenAI's API. The server itself imports nothing from here.
"""
