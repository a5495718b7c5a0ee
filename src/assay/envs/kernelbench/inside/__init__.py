"""What runs beside PyTorch in processes of their own, the candidate's above all. Nothing else imports these modules."""
