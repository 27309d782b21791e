"""Speed-ups on pretrained models, or of one version over another, through running servers: `gander bench pretrained`.

Not the server; nothing of it imports this.
"""
