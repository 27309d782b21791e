"""Whether one tree from every source beats whoever drafts alone, in tokens a second: `gander bench auto`.

Not the engine; nothing of it imports this.
"""
