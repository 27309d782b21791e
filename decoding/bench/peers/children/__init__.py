"""The code in the peers' processes: the loop, and an adapter for each peer that imports nothing but the peer.

Not the engine; nothing of it imports this.
"""
