"""What every room uses: errors, keys, progress, facts about the machine."""
