"""``TrainingPool``: robots are trained one by one, as a Python program submits them."""
