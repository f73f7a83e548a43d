// Prompts to start from: one where nearly everything can be guessed, and two where less can.
export const IDEAS = [
  {
    title: "Rename a function",
    text: `Here is a Python function:

\`\`\`python
def report(orders, currency="EUR"):
    totals = {}
    for order in orders:
        customer = order["customer"]
        amount = order["price"] * order["quantity"]
        totals[customer] = totals.get(customer, 0) + amount
    for customer in sorted(totals):
        print(f"{customer}: {totals[customer]:.2f} {currency}")
    return totals
\`\`\`

Write the same function again, but call it print_report.`,
  },
  { title: "Tell a story", text: "Tell a short story about a lighthouse keeper and a fox." },
  { title: "Explain something", text: "Why is the sky blue? Explain it in five sentences." },
];
