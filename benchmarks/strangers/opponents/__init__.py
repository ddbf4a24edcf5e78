"""What others would solve the families with: textbook loops, well tuned, and known libraries."""
