"""What no one value can be told of: other bits in calls with a secret, so that no kernel can ask for them."""
