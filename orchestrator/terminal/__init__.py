"""What people see in a terminal. Views are given values; the commands fetch them."""
