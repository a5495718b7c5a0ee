"""What a reference is put to beside its own draws: weights moved, and ties in any order."""
