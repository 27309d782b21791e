"""All that is drawn from a step's logits where they are: edits, scans, draws, walks."""
