"""Ordinary English words that the tiny tokenizer knows as single tokens.

Any other text still tokenises, into several pieces or single bytes.
"""

from __future__ import annotations

_FUNCTION_WORDS = """
a an the this that these those some any each every no not all both either neither one two three
four five six seven eight nine ten first second third last next other another same such more most
less least many much few several half whole of in on at by with without from to into onto over
under above below behind beside between among inside outside through across along around near far
against about as like than then when where while because if so and or but nor yet for up down out
off left right top bottom front back middle center corner edge side here there it its he she they
we you I me him her them us my your his our their who what which whose how why is are was were be
been being am do does did done have has had having can could will would shall should may might
must also very too quite just only even still again always never often together apart away
"""

_COLORS_AND_MATERIALS = """
red green blue yellow purple orange white black grey gray pink brown cyan magenta violet turquoise
teal navy maroon olive beige gold golden silver bronze copper cream ivory crimson scarlet lime
indigo lavender color colour colors colors colored colorful tone shade tint hue bright dark light
pale deep vivid dull soft hard warm cool neon pastel monochrome transparent opaque shiny matte
glossy glowing metallic wooden glass metal stone paper plastic cloth leather wool cotton silk
marble brick sand clay ice snow water fire smoke steam fog mist dust grass wood steel iron rubber
fabric velvet ceramic chrome rusty wet dry
"""

_SHAPES_AND_LAYOUT = """
circle square triangle cross star shape shapes ring disc disk oval ellipse rectangle diamond
pentagon hexagon octagon heart arrow crescent spiral line lines dot dots stripe stripes grid
checkerboard pattern wave zigzag curve cube sphere cone cylinder pyramid plus frame border outline
background foreground picture image photo photograph drawing painting sketch illustration portrait
landscape scene view closeup poster icon logo symbol sign letter word text number figure form
pointed round flat sharp smooth rough solid hollow filled empty large big small tiny huge little
tall short long wide narrow thick thin high low full centered rotated tilted framed size texture
quantity spatial relationships objects object describe detailing key features input output explain
instruction alter modify generate new meets user requirements maintaining consistency original
appropriate system assistant
"""

_VERBS = """
make turn change paint replace add remove put place move keep draw fill cover show hide give take
get set let use find look see hold stand sit lie walk run jump fly swim climb fall rise float hang
lean point smile laugh cry eat drink sleep play read write sing dance ride drive carry throw catch
open close cut break build grow shrink scale resize rotate flip mirror crop blur sharpen brighten
darken lighten recolor colorize swap erase delete insert extend expand enlarge reduce increase
decrease convert transform restyle adjust fix clean wash cook bake pour burn melt freeze shine glow
reflect surround wrap wear holding standing sitting lying walking running jumping flying swimming
looking smiling wearing eating playing reading riding driving floating hanging shining facing
surrounded made painted drawn covered decorated lit
"""

_THINGS = """
man woman boy girl child baby person people family friend king queen knight wizard witch robot
alien doctor teacher soldier pirate hero face head hair eye eyes nose mouth ear hand hands arm leg
foot feet body skin beard glasses hat cap crown helmet mask shirt coat jacket dress skirt pants
shoe shoes boot boots glove scarf tie belt ring necklace bag backpack umbrella watch dog cat horse
cow sheep goat pig chicken duck goose bird eagle owl parrot fish shark whale dolphin turtle frog
snake lizard dragon dinosaur lion tiger bear wolf fox deer rabbit mouse rat monkey elephant giraffe
zebra panda koala kangaroo bee butterfly spider ant tree trees flower flowers rose tulip leaf leaves
plant garden forest jungle field meadow hill mountain mountains valley river lake sea ocean beach
island desert sky cloud clouds sun moon stars planet earth space rain storm lightning rainbow wind
night day morning evening sunset sunrise spring summer autumn winter house home building tower
castle church temple bridge road street path city town village farm barn school shop market park
room kitchen bedroom bathroom wall floor ceiling door window roof stairs table chair sofa bed lamp
candle clock mirror vase bottle cup mug plate bowl knife fork spoon book pen pencil brush camera
phone computer keyboard screen radio car truck bus train bike bicycle motorcycle boat ship plane
airplane helicopter rocket balloon wheel engine road apple banana cherry grape lemon pear peach
strawberry tomato potato carrot onion bread cheese egg cake cookie pizza soup rice meat milk coffee
tea juice wine ball toy doll kite drum guitar piano violin sword shield bow key lock box basket
chain rope flag map coin gem crystal feather shell bone skull ghost angel monster
"""

_QUALITIES = """
old young beautiful pretty ugly cute happy sad angry calm funny scary strong weak fast slow heavy
hot cold good bad best better real fake simple complex modern ancient vintage retro futuristic
abstract realistic minimal detailed blurry sharp noisy clean dirty quiet loud rich poor strange
magic magical digital oil watercolor cartoon anime comic pixel art style render film studio natural
artificial dramatic cinematic quality high resolution professional colorless plain blank single
double pair group row column stack pile
"""

_NAMES = "sks toki mila vex zorp style concept subject trigger token"

WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        " ".join(
            (
                _FUNCTION_WORDS,
                _COLORS_AND_MATERIALS,
                _SHAPES_AND_LAYOUT,
                _VERBS,
                _THINGS,
                _QUALITIES,
                _NAMES,
            )
        ).split()
    )
)
"""Every known word once, in a fixed order."""
