"""What Prometheus is told.

Knows counts; nothing of requests' contents.
"""
