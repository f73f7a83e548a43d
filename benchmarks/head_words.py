"""Phrasings and word lists for `head_prompts.py`, all our own: `{...}` are filled from the lists or from real text."""


def listed(text: str) -> list[str]:
    """The items between the bars of a text that is wrapped as a paragraph; two bars side by side make an empty item."""
    return [" ".join(item.split()) for item in text.split("|")]


SUMMARISE = listed("""\
Summarize the following {noun}. | Summarise this {noun} in two or three sentences. | Give me a short summary of the
{noun} below. | What are the main points of this {noun}? | Write a one-paragraph summary of the {noun}. | TL;DR this
{noun} for me, please. | Please condense the {noun} into a few sentences. | Can you sum this up in plain English? | I
don't have time to read all of this. What does it say? | Summarize the text in bullet points. | In one sentence, what
is this {noun} about? | Boil the {noun} down to its three most important facts. | Write a brief abstract of the
{noun}. | Explain the key ideas of this {noun} to a teenager. | Shorten this {noun} to about 50 words. | Produce a
concise summary that keeps names and dates. | What should I remember from this {noun}? | Write a headline and a
two-sentence summary for the {noun}. | Summarize, please: | Recap the {noun} briefly. | Give the gist of this passage.
| Provide a summary of the {noun}, focusing on the causes and the results. | I need a short overview of this {noun}
for a newsletter. | Rewrite the {noun} as a short summary for a busy reader.""")

CONTEXT = listed("""\
Answer the question using only the passages below. | Use the following context to answer the question. | Here are some
documents. Read them and answer the question at the end. | Based on the information given, answer the question. | You
are given several search results. Use them to answer the user's question. | Read the context and reply to the question
as briefly as you can. | The following paragraphs may help to answer a question. | Given these excerpts, give a short
answer to the question. | Answer from the text. If the text does not say, reply that you do not know. | Please answer
the question with the help of the notes below. | Use the retrieved passages to write a helpful answer. | I found these
paragraphs. Can you answer my question from them? | Reference material is given below. | Consider the following
sources, then answer. | Some of the following passages are relevant and some are not. | Look through the documents and
find the answer. | Context information is below. Do not use other knowledge. | Below are facts collected from an
encyclopaedia. | Study the texts and respond to the question in one or two sentences. | With the evidence provided,
answer the question and explain your answer. | Helpful background: | Take the answer from these extracts.""")

TRANSLATE = listed("""\
Translate the following {source} sentence into {target}. | Translate from {source} to {target}: | Please translate
this into {target}. | How do you say this in {target}? | What does this {source} sentence mean in {target}? | Give me
the {target} translation of this sentence. | Provide a {target} translation. | Can you translate this {source} text to
{target}? | Render the following {source} text in natural {target}. | I don't speak {source}. What does this say in
{target}? | Convert the {source} text below to {target}. | {source} to {target}: | Write this sentence in {target}. |
Act as a translator and put this {source} text into {target}. | Put the following into {target}, keeping the tone. |
Translate this {source} passage accurately into {target}: | Please give an {target} version of the following. | My
friend wrote this in {source}. Translate it to {target}, please. | Translate into fluent {target} and give only the
translation. | {target} translation, please:""")

LABELS = {
    "encyclopaedia": listed("""\
Article | Text | Passage | Document | Content | ARTICLE | Excerpt | Input"""),
    "speech": listed("""\
Speech | Text | Transcript | Passage | Excerpt | Document"""),
}

NOUNS = {
    "encyclopaedia": listed("""\
article | text | passage | document | excerpt | article | report"""),
    "speech": listed("""\
speech | text | passage | excerpt | address | transcript"""),
}

TOPICS = listed("""\
climate change | solar power | the printing press | honey bees | black holes | the French Revolution | healthy sleep |
remote work | electric cars | vaccines | the stock market | inflation | jazz music | chess | ancient Rome | coral
reefs | robotics | social media | public libraries | space travel | coffee | bread baking | mountain climbing | the
Olympic Games | volcanoes | plate tectonics | photosynthesis | DNA | antibiotics | the Silk Road | urban gardening |
bicycles | city traffic | recycling | plastic waste | the deep sea | migratory birds | wolves | dinosaurs |
earthquakes | the water cycle | nuclear energy | artificial intelligence | online privacy | passwords | cryptography |
the internet | smartphones | video games | photography | painting | the Renaissance | Shakespeare | poetry | fairy
tales | detective novels | opera | film making | fashion | architecture | bridges | trains | aviation | sailing |
football | tennis | swimming | marathon running | yoga | meditation | friendship | leadership | public speaking | time
management | saving money | starting a business | customer service | job interviews | teamwork | teaching | learning a
language | parenting | pets | cats | dogs | horses | gardening | cooking for beginners | vegetarian food | chocolate |
tea | wine | nutrition | exercise | stress | mental health | first aid | the human heart | the brain | memory | dreams
| happiness | justice | democracy | elections | human rights | the Industrial Revolution | World War I | the Cold War
| ancient Egypt | the Vikings | the Aztecs | the Great Wall of China | the Roman Empire | feminism | ethics | free
will | religion | mythology | globalization | trade | unemployment | taxes | supply and demand | banking | housing |
immigration | education | universities | museums | tourism | beaches | deserts | rainforests | rivers | the moon |
Mars | comets | gravity | magnetism | electricity | light | sound | quantum mechanics | relativity | evolution |
genetics | viruses | bacteria | cancer research | organ transplants | glaciers | hurricanes | weather forecasts | wind
turbines | batteries | 3D printing | drones | self-driving cars | computer chips | databases | open source software |
the Python language | algorithms | statistics | probability | geometry | prime numbers | calculus | logic puzzles |
board games | magic tricks | holidays | weddings | birthdays | moving house | camping | fishing | skiing | local
markets | street food | family recipes | handwriting | letters | newspapers | radio | podcasts""")

ROLES = listed("""\
a pirate captain | a medieval knight | a kind primary school teacher | a grumpy old chef | a detective from the 1920s
| a travel guide in Rome | a doctor | a nurse on the night shift | a job interviewer | a stand-up comedian | a wise
grandmother | a robot that has just learned about feelings | an astronaut on Mars | a football coach | a librarian | a
financial adviser | a museum guard | a ghost in an old house | a talking cat | Sherlock Holmes | Isaac Newton |
Cleopatra | Leonardo da Vinci | a sports commentator | a radio host | a fitness trainer | a garden gnome | a software
engineer | a shy wizard | a judge | a sceptical scientist | a philosopher in ancient Athens | a ship's cook | a mayor
| a hotel receptionist | a shop assistant | a farmer | a time traveller | a dragon who collects books | a mountain
guide | a therapist | a lawyer | a poet | a news anchor | an airline pilot | a beekeeper | a train conductor | a
fashion designer | a history professor | a maths tutor""")

FORMS = listed("""\
a short story | a poem | a haiku | a news report | a blog post | an email to a colleague | a formal letter | a product
description | a speech | a dialogue between two friends | a diary entry | a song | an advertisement | a movie review |
a short essay | an opening paragraph for a novel | a fairy tale | a press release | a how-to guide | a tweet thread |
an invitation | a cover letter | a limerick | a script for a short video | a list of tips | a persuasive paragraph | a
fable with a moral | an apology letter | a newspaper editorial | a travel article""")

LIMITS = listed("""\
 |  |  |  | Keep it under 100 words. | Use simple language. | Use a humorous tone. | Write in the first person. | Make
it suitable for children. | Write in a formal tone. | Include at least one question. | Use no more than five
sentences. | End with a surprise. | Include a title. | Use vivid details. | Make it rhyme if you can. | Write about
200 words. | Give a concrete example. | Structure it in three parts. | Do not use the word "very". | Start with a
question. | Include a short dialogue.""")

PEOPLE = listed("""\
a curious child | a busy manager | a retired teacher | a college student | a new employee | a tourist | my neighbour |
a small business owner | a nervous beginner | an expert | a group of teenagers | a scientist | my boss | a friend who
disagrees | a voter | a patient | a customer | a parent""")

NAMES = listed("""\
Anna | Ben | Carla | David | Elena | Farid | Grace | Hiro | Ines | Jamal | Kate | Luis | Mina | Noah | Olga | Priya |
Quinn | Rosa | Sam | Tara""")

CODING = listed("""\
checks whether a string is a palindrome | reverses a linked list | computes the n-th Fibonacci number | sorts a list
of numbers with merge sort | finds the longest word in a sentence | counts the vowels in a text | merges two sorted
lists | removes duplicates from a list while keeping the order | checks whether a number is prime | finds all anagrams
in a list of words | parses a CSV file and prints the average of a column | reads a JSON file and prints its keys |
computes the greatest common divisor | converts Roman numerals to integers | implements binary search | finds the
shortest path in a grid | implements a stack with push and pop | implements a queue with two stacks | validates an
email address | generates all permutations of a list | counts how often each word occurs in a file | flattens a nested
list | rotates a matrix by 90 degrees | finds the two numbers that add up to a target | checks whether brackets are
balanced | implements a simple calculator | computes the factorial recursively | draws a triangle of stars | converts
Celsius to Fahrenheit | simulates rolling two dice | builds a binary search tree and prints it in order | finds the
intersection of two lists | implements an LRU cache | prints the current date and time | encrypts text
with a Caesar cipher | solves the Tower of Hanoi | plays rock, paper, scissors against the user | groups a list of
people by age | computes compound interest | finds the median of a list | transposes a matrix | implements quicksort |
multiplies two matrices | prints the first 100 prime numbers | splits a bill between friends | finds the most common
element in a list | formats a phone number | checks whether two strings are anagrams | counts the lines in all files
of a folder | generates a random password""")

LANGUAGES = listed("""\
Python | Python | Python | JavaScript | Java | C++ | C | Go | Rust | TypeScript | Ruby | SQL and Python | Bash | C#""")

COUNTRIES = listed("""\
France | Germany | Spain | Portugal | Italy | Greece | Turkey | Egypt | Morocco | Nigeria | Kenya | South Africa |
Ethiopia | Ghana | India | Pakistan | Nepal | China | Japan | South Korea | Vietnam | Thailand | Indonesia | the
Philippines | Australia | New Zealand | Canada | Mexico | Cuba | Brazil | Argentina | Chile | Peru | Colombia |
Venezuela | Bolivia | Iceland | Norway | Sweden | Finland | Denmark | Poland | Hungary | Austria | Switzerland | the
Netherlands | Belgium | Ireland | Scotland | Ukraine | Russia | Kazakhstan | Iran | Iraq | Israel | Saudi Arabia |
Jordan | Romania | Bulgaria | Croatia | Serbia | the Czech Republic""")

COUNTRY_QUESTIONS = listed("""\
What is the capital of {c}? | When did {c} become independent? | Which languages are spoken in {c}? | Who was the
first leader of {c}? | What is the largest city in {c}? | Where is {c} located? | What currency is used in {c}? | What
is {c} famous for? | Which river is the longest in {c}? | What is the highest mountain in {c}? | What is the
population of {c}? | What is the national dish of {c}? | Which countries border {c}? | When did {c} last host a big
sports event? | Who is the most famous writer from {c}? | what time zone is {c} in | how big is {c} compared to texas
| who won the last election in {c}""")

SUBJECT_QUESTIONS = listed("""\
Who invented {t}? | What is the history of {t}? | When did {t} become popular? | Why is {t} important? | What are
three facts about {t}? | How does {t} work? | where does {t} come from | what is the meaning of {t} | Who is the most
famous person connected with {t}? | What is the difference between {t} and {u}?""")

REASONING = listed("""\
{a} is older than {b}, and {b} is older than {c}. Who is the youngest, and how do you know? | {a}, {b} and {c} sit in
a row. {a} is not next to {c}. Who sits in the middle? | If all {x} people like tea and {a} does not like tea, is {a}
a {x} person? Explain your reasoning. | {a} says that everybody who cares about {t} should give up {u}. What is wrong
with this argument? | Which is a better use of public money: {t} or {u}? Argue for both sides and then decide. | {a}
has to choose between {t} and {u} as a topic for a talk to {p}. Which should it be, and why? | A train leaves at
{n}:15 and takes {m} minutes. {a} needs 10 minutes to walk to the office. When does {a} arrive? | What would happen if
{t} disappeared from the world tomorrow? Think step by step. | Find the odd one out and explain: {t}, {u}, {v}. |
Yesterday {a} finished {n} pages and {b} finished {m}. If {b} lost {n} of them, who is ahead? | {a} looks at a
photograph and says: "That person's mother is my mother's only daughter." Who is in the photograph? | Imagine {p} asks
you whether {t} is dangerous. How would you weigh the evidence? | Give two reasons why {t} might influence {u}, and
say which is more convincing.""")

MATHS = listed("""\
Solve for x: {n}x + {m} = {k}. | What is {n} percent of {k}? Show the steps. | {a} buys {n} notebooks at ${m} each and
pays with a ${k} note. How much change is there? | Find the roots of x^2 - {n}x + {m} = 0. | A rectangle is {n} cm
long and {m} cm wide. What are its area and perimeter? | What is the probability of drawing {n} red balls in a row
from a bag with {m} red and {k} blue balls, without replacement? | Compute the derivative of f(x) = {n}x^3 - {m}x +
{k}. | How many different ways are there to arrange {n} books on a shelf? Explain. | The mean of five numbers is {n}.
Four of them add up to {m}. What is the fifth? | Simplify ({n}x + {m})(x - {k}). | A car drives {k} km in {n} hours.
What is its average speed in metres per second? | What is the sum of the first {k} whole numbers? | Explain how to
divide {k} by {n} without a calculator. | If f(x) = {n}x + {m}, what is f(f({n}))? | Convert {k} to binary and explain
how you did it. | What is the remainder when {k} is divided by {n}? | Find the greatest common divisor of {k} and {m}.
| {a} invests ${k} at {n} percent interest for {m} years. How much money is there at the end?""")

SCIENCE = listed("""\
Explain {t} to {p}. | What are the most important discoveries about {t}? | Describe an experiment about {t} that can
be done at home. | How do scientists measure things related to {t}? | What are common misconceptions about {t}? |
Compare {t} and {u} from a scientific point of view. | What is known and what is not known about {t}? | Describe the
physics behind {t}. | What role does chemistry play in {t}? | How could engineers improve {t} in the next ten years? |
What happens inside {t} at the smallest scale? | List the main steps in the development of {t} and explain each
briefly.""")

HUMANITIES = listed("""\
Discuss how {t} changed society. | Write an outline for an essay on {t} and {u}. | What would a historian say about
{t}? | Which philosophers or writers have thought about {t}, and what did they conclude? | How is {t} seen in
different cultures? | Compare the importance of {t} in {c} and in {d}. | What are the ethical questions around {t}? |
Describe the origins of {t} and its influence on art. | How has the meaning of {t} changed over the last two
centuries? | Give arguments for and against {t} as a school subject. | Explain the economic effects of {t} on {c}. |
Design a lesson for {p} about {t}.""")

EXTRACT = listed("""\
List all the names of people and places in this text. | Extract every date or year in the text and say what happened
then. | Give me the key facts of the text as a JSON object. | Make a table with the most important terms and their
meaning. | Which organisations are mentioned? Answer as a comma-separated list. | Find three claims in the text and
rate how well each is supported. | Who did what, according to this text? Use bullet points. | Extract five keywords. |
What is the main topic, and what is the tone of the text? | Write three quiz questions with answers about this text. |
Find all the numbers in the text and what they stand for. | Turn the text into a list of questions and answers. |
Which sentence of the text carries the main idea? Quote it. | Classify the text as history, science, politics, sport
or art, and say why.""")

FOLLOW_UPS = {
    "writing": listed("""\
Now rewrite it in a sadder tone. | Make it half as long. | Now write it from the point of view of somebody else. | Add
a title and a last line. | Rewrite it so that every sentence is shorter than ten words. | Can you make it funnier? |
Turn it into a dialogue. | What would you improve in your text? | Write a reply to it. | Now the same, but set in the
year 2150."""),
    "roleplay": listed("""\
What do you regret most? | Tell me about your worst day at work. | And what would you say to a child who wants to be
like you? | Do you ever feel lonely? | Stay in the role and give me three pieces of advice. | I don't believe you.
Convince me. | How did you learn all this? | What do you think about modern technology?"""),
    "reasoning": listed("""\
Are you sure? Check each step again. | What if one of the facts were the other way round? | Explain it to a
ten-year-old. | Which assumption matters most? | Give a counterexample, if there is one. | Now state your answer in a
single sentence."""),
    "maths": listed("""\
Now double the first number and solve it again. | Check the result in a different way. | Explain the rule that you
used. | Make up a similar problem and solve it. | What would change if the result had to be a whole number? | Write
the solution as a short formula."""),
    "coding": listed("""\
Now add comments and a docstring. | Can you make it faster? | What is its time complexity? | Write tests for it. |
Handle bad input too. | Rewrite it without recursion or, if there is none, with it. | Explain the code line by line. |
Translate it to another programming language."""),
    "extraction": listed("""\
Now give the same as plain sentences. | Sort the result alphabetically. | Which of these is the most important, and
why? | Put it in a table. | Shorten it to one line. | Is anything missing?"""),
    "science": listed("""\
Can you give an everyday example? | What are the open questions? | How do we know that? | Explain it with an analogy.
| Which of these points is disputed? | How would you test that?"""),
    "humanities": listed("""\
Name one critic of this view and what they would say. | Shorten that to three bullet points. | How does this matter
today? | Can you give a concrete example from history? | What would somebody from another culture say? | Write a
closing paragraph."""),
}
