"""What runs in the processes of the peers: the loop, and a file for each peer that imports nothing but the peer.

Not the engine; nothing of it imports this.
"""
