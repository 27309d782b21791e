"""The server process: from open port to exit status, what a start prints, how it stops."""
