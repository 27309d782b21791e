"""Every drafting method on real models, or one version beside another, through servers: `gander bench real`.

Not the server; nothing of it imports this.
"""
