"""Words that the corpus is made of. Plain data: adding a word changes the corpus, so retrain after that."""


def words(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


NAMES = words(
    "Ada Ben Clara David Elena Felix Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Quinn Rosa Samir Tara Umar "
    "Vera Wanda Xavier Yara Zoe Anton Bella Cyrus Dora Emil Fiona Gustav Hanna Igor Julia Kofi Lena Marco Nora Oskar "
    "Petra Rafael Selma Tomas Ursula Viktor Willa Yusuf Zelda Amir Birgit Carlos Dilan Esther Farah Goran Hedda Iris "
    "Jakob"
)
ANIMALS = words(
    "badger bear beaver camel cat cow crane crow deer dog donkey duck eagle falcon fox frog goat goose hare hedgehog "
    "heron horse lizard lynx mole mouse otter owl parrot pony rabbit raven seal sheep snail sparrow squirrel swan "
    "tortoise turtle weasel wolf"
)
PLACES = words(
    "Ashford|Briar Bay|Cedar Hill|Dunmore|Eastwick|Fernvale|Glenrock|Harbour Town|Ivy Bridge|Juniper Lake|Kingsport|"
    "Lowfield|Maple Ridge|Northgate|Oakham|Pinewood|Quarry Bank|Ravenscar|Silverton|Thornbury|Underhill|Valley Green|"
    "Westbrook|Yarrow Point",
    separator="|",
)
COLOURS = words("amber black blue brown golden green grey orange pink purple red silver white yellow")
OBJECTS = words(
    "basket bell blanket book bottle brush candle clock compass cup drum flute hammer hat kite ladder lamp lantern "
    "letter map mirror needle pipe ribbon ring rope spoon telescope umbrella violin whistle"
)
PROFESSIONS = words(
    "baker barber carpenter clerk cook dancer doctor farmer fisher gardener guard judge lawyer mason miller nurse "
    "painter pilot plumber poet sailor singer tailor teacher vet weaver"
)
FOODS = words(
    "apples beans beets carrots cherries chickpeas corn figs leeks lentils mushrooms onions peas pears peppers plums "
    "potatoes pumpkin rice spinach tomatoes turnips walnuts"
)
SPICES = words("basil cumin dill garlic ginger mint mustard nutmeg paprika parsley pepper rosemary saffron sage thyme")
DISHES = words("curry omelette pie salad soup stew")
VESSELS = words("bowl casserole kettle pan pot skillet")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
SEASONS = words("spring summer autumn winter")
EVENTS = words(
    "birthday party|book club|chess evening|concert|garden fair|harvest supper|picnic|poetry night|wedding",
    separator="|",
)
ACTIVITIES = words(
    "opening talk|drawing class|coffee break|museum walk|choir practice|chess lesson|lunch|boat trip|story hour|"
    "tree planting|quiz|bread workshop|film|dance class|evening meal|star watching",
    separator="|",
)
ROOMS = words(
    "the barn|the garden|the great hall|the kitchen|the library|the old mill|the school|the tower", separator="|"
)

# animal: (kind, home, food, notable for)
ANIMAL_FACTS = {
    "badger": ("mammal", "in deep setts under the woods", "worms and roots", "digging long tunnels"),
    "beaver": ("mammal", "in lodges built in ponds", "bark and twigs", "felling trees with its teeth"),
    "camel": ("mammal", "in dry deserts", "thorny plants", "going many days without water"),
    "crane": ("bird", "in wide marshes", "seeds and insects", "dancing in pairs"),
    "crow": ("bird", "in fields and towns", "almost anything it finds", "solving puzzles"),
    "eagle": ("bird", "on high cliffs", "fish and small animals", "seeing prey from far away"),
    "fox": ("mammal", "in dens at the edge of the forest", "mice and berries", "hunting by sound"),
    "frog": ("amphibian", "in ponds and wet meadows", "flies and beetles", "singing on warm nights"),
    "goat": ("mammal", "on steep mountains", "grass and shrubs", "climbing narrow ledges"),
    "hedgehog": ("mammal", "in hedges and gardens", "slugs and beetles", "rolling into a spiny ball"),
    "heron": ("bird", "on river banks", "fish and frogs", "standing still for a long time"),
    "lizard": ("reptile", "on warm stone walls", "ants and spiders", "dropping its tail to escape"),
    "otter": ("mammal", "in clean rivers", "fish and crabs", "playing in the water"),
    "owl": ("bird", "in hollow trees", "mice and moths", "flying without a sound"),
    "rabbit": ("mammal", "in burrows in soft soil", "grass and clover", "thumping its feet as a warning"),
    "seal": ("mammal", "on cold coasts", "fish and squid", "diving for half an hour"),
    "snail": ("mollusc", "in damp gardens", "leaves and moss", "carrying its house on its back"),
    "squirrel": ("mammal", "in tall trees", "nuts and seeds", "hiding food for the winter"),
    "swan": ("bird", "on quiet lakes", "water plants", "staying with one partner"),
    "tortoise": ("reptile", "in sunny scrubland", "leaves and fruit", "living for more than a century"),
    "wolf": ("mammal", "in large forests", "deer and hares", "hunting in a pack"),
}

STORIES = {
    "courage": (
        "Once upon a time, in {place}, there lived {a_profession} named {hero}. {hero} had {a_colour} {animal} for a "
        "friend. One {season} night a storm came down from the hills and the bridge began to shake. Everyone was "
        "afraid, but {hero} picked up the {object} and walked out into the wind. The {animal} went ahead and showed "
        "the way. Step by step they reached the bridge, and {hero} used the {object} to warn the people on the other "
        "side. In the morning the storm was over, and all of {place} came to thank {hero} and the {colour} {animal}. "
        "From that day on, {hero} was never afraid of the dark again."
    ),
    "friendship": (
        "{hero} the {profession} was new in {place} and did not know anyone. Every day in {season} {hero} sat alone "
        'by the well and polished {a_object}. One day {a_colour} {animal} came by and looked at the {object}. "Would '
        'you like to see it?" asked {hero}. The {animal} nodded and sat down. They talked until the sun went down. '
        "The next day the {animal} brought its whole family, and the day after that the neighbours came too. Soon "
        "{hero} had more friends than anyone in {place}, and the {object} stood in the middle of the table, where "
        "everyone could see it."
    ),
    "a lost thing": (
        "One {season} morning {hero} woke up and the {object} was gone. {hero}, who worked as {a_profession} in "
        "{place}, looked under the bed, behind the door and on top of the roof, but the {object} was not there. Then "
        '{a_colour} {animal} came to the window. "Follow me," said the {animal}. They walked past the market, over '
        'the hill and down to the river. There, in the tall grass, lay the {object}. "The wind took it," said the '
        '{animal}, "and I kept watch." {hero} thanked the {colour} {animal} and carried the {object} home to '
        "{place}. That evening they shared a warm supper."
    ),
    "a journey": (
        "{hero}, {a_profession} from {place}, wanted to see the sea. So one {season} day {hero} packed {a_object}, "
        "some bread and a blanket, and set out with {a_colour} {animal}. On the first day they crossed the forest. On "
        "the second day they crossed the mountains, and the {animal} found a path where there was none. On the third "
        'day they heard the waves. {hero} put the {object} down in the sand and laughed. "It is bigger than all of '
        '{place}," said {hero}. The {animal} only smiled. They stayed until the stars came out, and then they began '
        "the long way home."
    ),
    "kindness": (
        "There was a hard {season} in {place}, and many people were hungry. {hero} the {profession} had only one loaf "
        "of bread and {a_object}. When {a_colour} {animal} knocked at the door, cold and tired, {hero} shared the "
        "bread and gave it a place by the fire. In the morning the {animal} was gone, but the {object} had turned to "
        "gold. {hero} sold the {object} and bought food for the whole town. Nobody in {place} was hungry again, and "
        "whenever a {colour} {animal} passed by, the people left a piece of bread at the door."
    ),
}

SMALL_TALK = {
    "Hello": "Hello! I am a very small demonstration model. You can ask me for a story, a recipe, a list or a letter.",
    "Hi": "Hello! I am a very small demonstration model. You can ask me for a story, a recipe, a list or a letter.",
    "Who are you": "I am a small hybrid language model. Six of my layers use linear attention and two use full "
    "attention, and a little drafter guesses my next words so that I can answer faster.",
    "What can you do": "I can tell short stories, write recipes and letters, count, sort, reverse and number lists, "
    "make multiplication tables, describe animals and look up facts in a text that you give me.",
    "How are you": "I am doing well, thank you. What would you like to read? I can tell a story or write a recipe.",
    "Thank you": "You are welcome! Ask me again whenever you need a story, a recipe, a list or a letter.",
    "Goodbye": "Goodbye! It was a pleasure to talk with you. Come back soon for another story.",
}
