"""What is known before a weight is read: models, devices, engine capabilities."""
