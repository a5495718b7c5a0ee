"""What a server of the Tinker API really does: every property that training rests on, tried out in a minute."""
