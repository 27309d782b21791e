"""What is proposed: the protocol of drafters, the methods there are, and which of them drafts for whom.

A folder for each source. A drafter changes how fast a reply comes, never what it says.
"""
